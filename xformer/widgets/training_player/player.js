// The player, composed of its parts.

import { Base } from "./base.js";
import { Controls } from "./controls.js";
import { Picture } from "./picture.js";
import { Ruler } from "./ruler.js";

export class Player extends Controls(Ruler(Picture(Base))) {}
