import { mounted } from "../streamlit.js";
import { StepRuler } from "./ruler.js";

export default mounted(StepRuler, "rest");
