/** The shell around every page: banner, navigation, the page of the address, Sign in where there is no session. */
import { ApiError, UNPROVED, api, renew, useAction, useModule, useRecovery } from "./api.js";
import { html, instead, render, useEffect, useState } from "./html.js";
import { useLiveState } from "./live.js";
import { Empty, Guarded, Loading, Problem, Title } from "./parts/elements.js";
import { KeyboardHelp } from "./parts/keyboard.js";
import { acceptDroppedRunFiles } from "./parts/run_file.js";
import SignIn from "./pages/sign_in.js";
import { ROUTES, resolve } from "./routes.js";
import { forgetToken, keepToken, may, onSessionEnd, takeSignInCode, token } from "./session.js";

/** @param {object} answer of `POST session` @returns {import("./session.js").Session} */
function begin(answer) {
  keepToken(answer.token, answer.role);
  return answer;
}

const useHashChange = (action) => useEffect(() => {
  window.addEventListener("hashchange", action);
  return () => window.removeEventListener("hashchange", action);
}, []);

/** Who is signed in: `session` is undefined while that is being asked, null for no user; `reason` says why. */
function useSession() {
  const [state, setState] = useState({});
  const nobody = (reason = "") => setState({ session: null, reason });
  const ask = () => {
    const code = takeSignInCode();
    const asked = code ? api("POST", "session", { code }).then(begin) : token() && api("GET", "session");
    if (!asked) return nobody();
    setState({});
    return asked.then((session) => setState({ session }), (error) => {
      // A server with another folder of the console, such as a new installation, knows no session of the one before.
      if (error instanceof ApiError && (error.type === UNPROVED || [400, 401, 403, 410, 429].includes(error.status))) nobody(error.message);
      else setState({ error });
    });
  };
  useEffect(() => {
    ask();
    onSessionEnd(nobody);
  }, []);
  useRecovery(state.error, ask);
  // A second sign-in link opened in the same tab changes nothing but the fragment.
  useHashChange(() => location.hash.startsWith("#signin=") && ask());
  const signIn = async (key) => setState({ session: begin(await api("POST", "session", { key })) });
  const signOut = async () => {
    await api("DELETE", "session").catch(() => {});
    forgetToken();
    nobody();
  };
  return { ...state, ask, signIn, signOut };
}

function App() {
  const [hash, setHash] = useState(location.hash);
  useHashChange(() => setHash(location.hash));
  const { session, error, reason, ask, signIn, signOut } = useSession();
  const found = resolve(hash || "#/runs");
  let content = html`<${Loading} />`;
  if (error) content = html`<${Problem} error=${error} retry=${ask} />`;
  else if (session) content = html`<${Page} ...${found} session=${session} signOut=${signOut} />`;
  else if (session === null) content = html`<${SignIn} reason=${reason} signIn=${signIn} />`;
  // The fragment belongs to the routes, so the link moves the focus itself.
  const skip = instead(() => document.getElementById("main").focus());
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to content</a>
    <${Banner} session=${session} route=${found.route} />
    <main id="main" tabindex="-1">${content}</main>
    <${KeyboardHelp} />`;
}

function Banner({ session, route }) {
  const [open, setOpen] = useState(false);
  useEffect(() => setOpen(false), [route]);
  const links = session ? ROUTES.filter((one) => one.name && may(session, one.role)) : [];
  const here = route?.path.split("/")[0];
  return html`<header class="banner">
    <span class="brand">WilmerAI</span>
    ${links.length > 0 && html`<button class="menu quiet" aria-expanded=${String(open)} aria-controls="navigation" onClick=${() => setOpen(!open)}>Menu</button>`}
    <nav id="navigation" aria-label="Console" class=${open ? "open" : ""}>
      ${links.map(({ path, name }) => html`<a key=${path} href=${`#/${path}`} aria-current=${path === here ? "page" : undefined}>${name}</a>`)}
    </nav>
    <span class="end"><${LiveState} /><${ThemeButton} /></span>
  </header>`;
}

const LIVE_SHAPES = { live: "●", paused: "‖", reconnecting: "↻" };

function LiveState() {
  const state = useLiveState();
  return html`<span class=${`live ${state}`} role="status" aria-label="Live updates"
    title="Whether this page shows what happens on the server by itself">
    <span class="shape" aria-hidden="true">${LIVE_SHAPES[state]}</span> ${state}</span>`;
}

// Dark and light: the system's choice, or the reader's.
const THEME = "wilmer-console-theme";
const THEMES = { system: "◐", dark: "●", light: "○" };

const stored = () => (localStorage.getItem(THEME) in THEMES ? localStorage.getItem(THEME) : "system");

/** Called before anything is drawn. */
function applyTheme() {
  document.documentElement.dataset.theme = stored();
}

function ThemeButton() {
  const [theme, setTheme] = useState(stored());
  const next = () => {
    const names = Object.keys(THEMES);
    const chosen = names[(names.indexOf(theme) + 1) % names.length];
    localStorage.setItem(THEME, chosen);
    applyTheme();
    setTheme(chosen);
  };
  return html`<button class="quiet" aria-label="Theme" title=${`Theme: ${theme}`} onClick=${next}>
    <span aria-hidden="true">${THEMES[theme]}</span><span class="theme-name" aria-hidden="true"> ${theme}</span></button>`;
}

function Page({ route, path, query, session, signOut }) {
  const [tries, setTries] = useState(0);
  const allowed = route && may(session, route.role);
  const { data: module, error, reload } = useModule(allowed ? route.page : null, () => import(`./pages/${route.page}.js`),
    "A part of this page could not be loaded.");
  // A module that failed is not asked for again by the same import, so the whole page is.
  const renewing = useAction(renew);
  if (!allowed) return html`<${Missing} route=${route} />`;
  if (error) return html`<${Problem} ...${error.status === 404 ? { error: renewing.error ?? error, retry: renewing.run } : { error, retry: reload }} />`;
  if (!module) return html`<${Loading} />`;
  const broken = html`<${Problem} error=${{ message: "This page could not be shown.", where: route.path }} retry=${() => setTries(tries + 1)} />`;
  // Another run is another page: nothing of the one before may stand on it for a moment.
  return html`<${Guarded} key=${`${tries} ${route.path} ${path.join("/")}`} instead=${broken}>
    <${module.default} path=${path} query=${query} session=${session} signOut=${signOut} /><//>`;
}

function Missing({ route }) {
  return html`<${Title}>${route ? "Not for this session" : "No such page"}<//>
    <${Empty} title=${route ? "This page needs more rights than the session has" : "There is no page at this address"}>
      <p>${route ? html`The operator's pages are opened by the link that <code>python server.py console</code> prints.`
        : html`<a href="#/runs">Runs</a> has all that happened on this server.`}</p><//>`;
}

applyTheme();
acceptDroppedRunFiles();
render(html`<${App} />`, document.getElementById("app"));
