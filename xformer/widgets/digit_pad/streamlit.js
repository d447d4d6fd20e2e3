import { mounted } from "../streamlit.js";
import { Pad } from "./pad.js";

export default mounted(Pad, "drawn");
