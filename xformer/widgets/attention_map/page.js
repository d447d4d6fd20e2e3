import { embedded, place, whenThemeChanges } from "../page.js";
import { AttentionMap } from "./view.js";

const view = new AttentionMap(place("map"));
view.update(embedded("data"));
whenThemeChanges(() => view.draw());
