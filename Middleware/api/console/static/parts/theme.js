/** Dark and light: the system's choice, or the reader's. */
import { html, useState } from "../html.js";

const NAME = "wilmer-console-theme";
const THEMES = { system: "◐", dark: "●", light: "○" };

const stored = () => (localStorage.getItem(NAME) in THEMES ? localStorage.getItem(NAME) : "system");

/** Called before anything is drawn. */
export function applyTheme() {
  document.documentElement.dataset.theme = stored();
}

export function ThemeButton() {
  const [theme, setTheme] = useState(stored());
  const next = () => {
    const names = Object.keys(THEMES);
    const chosen = names[(names.indexOf(theme) + 1) % names.length];
    localStorage.setItem(NAME, chosen);
    applyTheme();
    setTheme(chosen);
  };
  return html`<button class="quiet" aria-label="Theme" title=${`Theme: ${theme}`} onClick=${next}>
    <span aria-hidden="true">${THEMES[theme]}</span><span class="theme-name" aria-hidden="true"> ${theme}</span></button>`;
}
