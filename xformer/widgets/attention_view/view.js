// The attention view, composed of its parts.

import { Base } from "./base.js";
import { Building } from "./building.js";
import { Detail } from "./detail.js";
import { Input } from "./input.js";
import { Overview } from "./overview.js";

export class AttentionView extends Input(Detail(Overview(Building(Base)))) {}
