/** Sign in: what every address shows without a session. */
import { useAction } from "../api.js";
import { html, instead, useState } from "../html.js";
import { Field, Problem, Title } from "../parts/elements.js";

/** @param {{reason: string, signIn: (key: string) => Promise<void>}} props `reason`: why there is no session any more */
export default function SignIn({ reason, signIn }) {
  const [key, setKey] = useState("");
  const [before, setBefore] = useState(reason && { message: reason });
  const signing = useAction(async () => {
    setBefore(null);
    if (!key.trim()) throw new Error("Enter an access key, or open a sign-in link.");
    await signIn(key.trim());
  });
  return html`<div class="sign-in">
    <${Title}>Sign in<//>
    <p>On the computer that runs WilmerAI, in its folder, this prints a link that opens the console:</p>
    <pre class="command">python server.py console</pre>
    <p>Installed from a wheel, the command is <code>wilmerai console</code>. The link is good once, within ten minutes, and
      this browser then stays signed in.</p>
    <form onSubmit=${instead(signing.run)}>
      <h2>Or with a key</h2>
      <p class="note">The key that your chat program sends shows the runs that were made with it. Where the server has a
        list of accepted keys, the key's line in that list must say <code>console=own</code> or <code>console=all</code>.</p>
      <${Field} label="Access key" type="password" autocomplete="current-password" value=${key} onChange=${setKey} />
      <button type="submit" class="primary" disabled=${signing.busy}>Sign in</button>
    </form>
    <${Problem} error=${signing.error ?? before} />
  </div>`;
}
