import { mounted } from "../streamlit.js";
import { CodeView } from "./view.js";

export default mounted(CodeView, "act");
