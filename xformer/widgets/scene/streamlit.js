import { mounted } from "../streamlit.js";
import { Scene } from "./scene.js";

export default mounted(Scene, "act");
