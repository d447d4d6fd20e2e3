import { embedded, place, whenThemeChanges } from "../page.js";
import { CodeView } from "./view.js";

const view = new CodeView(place("code"));
view.update(embedded("data"));
whenThemeChanges(() => view.draw());
