import { mounted } from "../streamlit.js";
import { Player } from "./player.js";

export default mounted(Player, "rest");
