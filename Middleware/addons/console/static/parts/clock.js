/** The server's clock, for what is still running. */
import { useEffect, useState } from "../html.js";

// The header has whole seconds, so a smaller difference says nothing.
const NOTICED_MS = 2000;
let skew = 0;

/** @param {string | null} date header of an answer */
export function learnServerTime(date) {
  const difference = Date.parse(date ?? "") - Date.now();
  skew = Math.abs(difference) > NOTICED_MS ? difference : 0;
}

/** @returns {number} microseconds since 1970, as the server counts them */
export function serverNow() {
  return (Date.now() + skew) * 1000;
}

/** @param {boolean} running @returns {number} `serverNow()`, drawn again twice a second while something runs */
export function useNow(running) {
  const [now, setNow] = useState(serverNow);
  useEffect(() => {
    if (!running) return undefined;
    setNow(serverNow());
    const timer = setInterval(() => setNow(serverNow()), 500);
    return () => clearInterval(timer);
  }, [running]);
  return now;
}
