import { place, embedded } from "../page.js";
import { StudentPage } from "./student.js";

const colours = JSON.parse(new TextDecoder().decode(embedded("colours")));
const code = (location.pathname.split("/").pop() ?? "").replace(/[^a-z]/gi, "").toUpperCase();
Object.assign(window, { xformerRoom: new StudentPage(place("room"), code, colours) });
