// A WebSocket that reconnects. `take(message)` receives messages, and `say(text, isOpen)` the connection status.

const ENDED = 4404, REFUSED = 4403, REMOVED = 4405;
const REASONS = {
  [ENDED]: "This room has ended.",
  [REFUSED]: "This browser cannot join: close other tabs of the room, and allow cookies.",
  [REMOVED]: "The lecturer has removed everyone from this room. Reload the page to join again.",
};
const SOONEST = 250, LATEST = 1500; // milliseconds until the next attempt

export const httpBase = (path = location.pathname) => path.replace(/\/(join|room)\/?.*$/, ""); // the base path of the app

export class Connection {
  wait = SOONEST;
  isOver = false;
  isReady = false;
  /** @type {WebSocket} */ socket;
  /** @type {string | undefined} */ reason; // of a refusal that follows

  /** @param {string} path @param {(message: any) => void} take @param {(text: string, isOpen: boolean) => void} say */
  constructor(path, take, say) {
    this.path = path;
    this.take = take;
    this.say = say;
    this.open();
    addEventListener("online", this.now);
  }

  now = () => { if (this.socket.readyState === WebSocket.CLOSED && !this.isOver) this.open(); };

  open() {
    clearTimeout(this.timer);
    const socket = (this.socket = new WebSocket(`${location.protocol.replace("http", "ws")}//${location.host}${this.path}`));
    socket.onopen = () => { this.wait = SOONEST; };
    socket.onmessage = ({ data }) => {
      if (!this.isReady) { this.isReady = true; this.say("", true); }
      const message = JSON.parse(data);
      this.reason = message.type === "problem" ? message.text : undefined;
      this.take(message);
    };
    socket.onclose = ({ code }) => {
      this.isReady = false;
      if (this.isOver) return;
      if (code in REASONS) {
        this.isOver = true;
        return this.say(this.reason ?? REASONS[code], false);
      }
      this.say("Connecting …", false);
      this.timer = setTimeout(() => this.open(), this.wait * (0.5 + Math.random()));
      this.wait = Math.min(LATEST, this.wait * 2);
    };
  }

  send(message) { // false: not connected
    if (this.socket.readyState !== WebSocket.OPEN) return false;
    this.socket.send(JSON.stringify(message));
    return true;
  }

  close() {
    this.isOver = true;
    clearTimeout(this.timer);
    removeEventListener("online", this.now);
    this.socket.close();
  }
}
