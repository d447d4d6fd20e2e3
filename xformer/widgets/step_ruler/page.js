import { place, whenThemeChanges, written } from "../page.js";
import { StepRuler } from "./ruler.js";

const ruler = new StepRuler(place("ruler"));
ruler.update(JSON.parse(new TextDecoder().decode(written("data"))));
whenThemeChanges(() => ruler.draw());
