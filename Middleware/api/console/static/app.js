/** The shell around every page: banner, navigation, the page of the address, Sign in where there is no session. */
import { ApiError, api } from "./api.js";
import { html, render, useEffect, useRef, useState } from "./html.js";
import { useLiveState } from "./live.js";
import { Empty, Loading, Problem } from "./parts/alert.js";
import { KeyboardHelp } from "./parts/keyboard.js";
import { acceptDroppedRunFiles } from "./parts/run_file.js";
import { ThemeButton, applyTheme } from "./parts/theme.js";
import { Title } from "./parts/title.js";
import SignIn from "./pages/sign_in.js";
import { ROUTES, resolve } from "./routes.js";
import { forgetToken, keepToken, may, onSessionEnd, takeSignInCode, token } from "./session.js";

/** @param {object} answer of `POST session` @returns {import("./session.js").Session} */
function begin(answer) {
  keepToken(answer.token, answer.role);
  return answer;
}

/** Who is signed in; `undefined` while that is being asked. */
function useSession() {
  const [state, setState] = useState({ session: undefined, error: null, reason: "" });
  const ask = () => {
    const code = takeSignInCode();
    const asked = code ? api("POST", "session", { code }).then(begin) : token() && api("GET", "session");
    if (!asked) {
      setState({ session: null, error: null, reason: "" });
      return;
    }
    setState({ session: undefined, error: null, reason: "" });
    asked.then((session) => setState({ session, error: null, reason: "" }), (error) => {
      const refused = error instanceof ApiError && [400, 401, 403, 410, 429].includes(error.status);
      if (refused) setState({ session: null, error: null, reason: error.message });
      else setState({ session: undefined, error, reason: "" });
    });
  };
  useEffect(() => {
    ask();
    // A second sign-in link opened in the same tab changes nothing but the fragment.
    const onHash = () => location.hash.startsWith("#signin=") && ask();
    window.addEventListener("hashchange", onHash);
    const remove = onSessionEnd((reason) => setState({ session: null, error: null, reason }));
    return () => { window.removeEventListener("hashchange", onHash); remove(); };
  }, []);
  const signIn = async (key) => setState({ session: begin(await api("POST", "session", { key })), error: null, reason: "" });
  const signOut = async () => {
    await api("DELETE", "session").catch(() => {});
    forgetToken();
    setState({ session: null, error: null, reason: "" });
  };
  return { ...state, ask, signIn, signOut };
}

function useHash() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const onChange = () => setHash(location.hash);
    window.addEventListener("hashchange", onChange);
    return () => window.removeEventListener("hashchange", onChange);
  }, []);
  return hash;
}

function App() {
  const hash = useHash();
  const { session, error, reason, ask, signIn, signOut } = useSession();
  const found = resolve(hash || "#/runs");
  let content;
  if (error) content = html`<${Problem} error=${error} retry=${ask} />`;
  else if (session === undefined) content = html`<${Loading} />`;
  else if (session === null) content = html`<${SignIn} reason=${reason} signIn=${signIn} />`;
  else content = html`<${Page} ...${found} session=${session} signOut=${signOut} />`;
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to content</a>
    <${Banner} session=${session} route=${found.route} />
    <main id="main" tabindex="-1">${content}</main>
    <${KeyboardHelp} />`;
}

/** The fragment belongs to the routes, so the link moves the focus itself. */
function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function Banner({ session, route }) {
  const [open, setOpen] = useState(false);
  useEffect(() => setOpen(false), [route]);
  const links = session ? ROUTES.filter((one) => one.name && may(session, one.role)) : [];
  const here = route?.path.split("/")[0];
  return html`<header class="banner">
    <span class="brand">WilmerAI</span>
    ${links.length > 0 && html`<button type="button" class="menu quiet" aria-expanded=${String(open)} aria-controls="navigation"
      onClick=${() => setOpen(!open)}>Menu</button>`}
    <nav id="navigation" aria-label="Console" class=${open ? "open" : ""}>
      ${links.map((one) => html`<a key=${one.path} href=${`#/${one.path}`}
        aria-current=${one.path === here ? "page" : undefined}>${one.name}</a>`)}
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

function Page({ route, path, query, session, signOut }) {
  const [loaded, setLoaded] = useState({ route: null, component: null, error: null });
  const [attempt, setAttempt] = useState(0);
  const wanted = useRef(route);
  wanted.current = route;
  useEffect(() => {
    if (!route) return;
    route.load().then(
      (module) => wanted.current === route && setLoaded({ route, component: module.default, error: null }),
      () => wanted.current === route && setLoaded({
        route, component: null, error: { message: "A part of this page could not be loaded.", where: route.path } }),
    );
  }, [route, attempt]);
  if (!route || !may(session, route.role)) return html`<${Missing} route=${route} />`;
  if (loaded.route !== route) return html`<${Loading} />`;
  if (loaded.error) {
    // A module that failed is not asked for again by the same import, so the whole page is.
    return html`<${Problem} error=${loaded.error} retry=${() => (attempt ? location.reload() : setAttempt(1))} />`;
  }
  // Another run is another page: nothing of the one before may stand on it for a moment.
  return html`<${loaded.component} key=${`${route.path} ${path.join("/")}`} path=${path} query=${query} session=${session}
    signOut=${signOut} />`;
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
