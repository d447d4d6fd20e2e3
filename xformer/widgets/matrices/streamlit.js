import { mounted } from "../streamlit.js";
import { Matrices } from "./matrices.js";

export default mounted(Matrices, "act");
