import { button, element } from "../shared.js";
import { place, written } from "../page.js";
import { httpBase } from "./connection.js";
import { StudentPage } from "./student.js";

const json = (name) => JSON.parse(new TextDecoder().decode(written(name))), root = place("room");

function ask({ problem }) { // the six letters of a room
  root.className = "room ui entrance";
  const form = element("form"), field = element("input"), label = element("label", "", "Code of the room");
  Object.assign(field, { autocomplete: "off", autocapitalize: "characters", spellcheck: false, maxLength: 12, required: true });
  const join = button("Join", null);
  join.type = "submit";
  label.append(field);
  form.onsubmit = (event) => {
    event.preventDefault();
    location.href = `${httpBase()}/join/${encodeURIComponent(field.value.replace(/[\s-]/g, "").toUpperCase())}`;
  };
  form.append(element("h1", "", "Join the lecture"), element("p", "hint", "The lecturer's screen shows six letters."), label, join);
  if (problem) form.append(Object.assign(element("p", "problem", problem), { role: "alert" }));
  root.append(form);
  field.focus();
}

if (place("ask")) ask(json("ask"));
else {
  const code = (new URLSearchParams(location.search).get("code") ?? location.pathname.split("/").pop()).replace(/[^a-z]/gi, "").toUpperCase();
  window.xformerRoom = new StudentPage(root, code, json("colours"));
}
