// Finds the number of this browser in its cookie, or makes one, and says it.

export default function ({ data, setStateValue }) {
  let number = document.cookie.split("; ").find((entry) => entry.startsWith(`${data.cookie}=`))?.split("=")[1];
  if (!/^[0-9a-f]{32}$/.test(number ?? "")) {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    number = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
    document.cookie = `${data.cookie}=${number}; path=/; max-age=31536000; SameSite=Strict`;
  }
  setStateValue("number", number);
}
