import { mounted } from "../streamlit.js";
import { HostView } from "./host.js";

export default mounted(HostView, "room");
