import { place, embedded } from "../page.js";
import { Lesson } from "./lesson.js";
import { makeLive } from "./run.js";
import { LivePage } from "./view.js";

const json = (name) => (place(name) ? JSON.parse(new TextDecoder().decode(embedded(name))) : null);

// In the lecturer's frame of a room (`?room`), the host moves the steps, and nothing is stored.
const isAlone = !new URLSearchParams(location.search).has("room");
const live = await makeLive(embedded("model")), lesson = json("lesson");
const page = new LivePage(place("live"), live, {
  colours: json("colours"), state: json("state") ?? {},
  lesson: lesson && ((parent, shown, step) => new Lesson(parent, lesson, shown, step, isAlone)),
});
Object.assign(window, { xformerLive: Object.assign(live, { page }) });
