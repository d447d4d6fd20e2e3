import { mounted } from "../streamlit.js";
import { AttentionMap } from "./view.js";

export default mounted(AttentionMap, "head");
