import { receive } from "./messages.js";

export default ({ data }) => { if (data && data.length >= 8) receive(data); };
