// The ruler, put together from its parts.

import { Base } from "./base.js";
import { Controls } from "./controls.js";
import { Now } from "./now.js";
import { Timeline } from "./timeline.js";

export class StepRuler extends Controls(Now(Timeline(Base))) {}
