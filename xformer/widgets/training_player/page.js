import { place, whenThemeChanges, written } from "../page.js";
import { Player } from "./player.js";

const player = new Player(place("player"));
player.update(written("data"));
whenThemeChanges(() => player.draw());
