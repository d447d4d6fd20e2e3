import { place, whenThemeChanges, embedded } from "../page.js";
import { StepRuler } from "./ruler.js";

const ruler = new StepRuler(place("ruler"));
ruler.update(JSON.parse(new TextDecoder().decode(embedded("data"))));
whenThemeChanges(() => ruler.draw());
