import { place, whenThemeChanges, embedded } from "../page.js";
import { Player } from "./player.js";

const player = new Player(place("player"));
player.update(embedded("data"));
whenThemeChanges(() => player.draw());
