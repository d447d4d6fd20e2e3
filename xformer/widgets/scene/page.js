import { place, whenThemeChanges, written } from "../page.js";
import { Scene } from "./scene.js";

const scene = new Scene(place("scene"));
scene.update(written("data"));
whenThemeChanges(() => scene.fit());
