/** Memory: what is remembered of each conversation. */
import { html } from "../html.js";
import { DiscussionPage } from "./memory/discussion.js";
import { DiscussionList } from "./memory/list.js";

/** @param {{path: string[], query: URLSearchParams, session: import("../session.js").Session}} props */
export default function Memory({ path: [id], query, session }) {
  return id === undefined
    ? html`<${DiscussionList} session=${session} />`
    : html`<${DiscussionPage} key=${`${id}?${query.get("folder")}&${query.get("user")}`} id=${id} query=${query} session=${session} />`;
}
