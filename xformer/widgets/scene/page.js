import { place, whenThemeChanges, embedded } from "../page.js";
import { Scene } from "./scene.js";

const scene = new Scene(place("scene"));
scene.update(embedded("data"));
whenThemeChanges(() => scene.fit());
