"""What becomes of values that variables insert into URLs: rows for each node that requests one.

A row has a URL behind the server's address, the value of its ``{agent1Output}``, and the target of the request.
"""

MUSEUM = "rock & roll museum K\u00f6ln #1"
MUSEUM_ENCODED = "rock%20%26%20roll%20museum%20K%C3%B6ln%20%231"
READY_MADE = "q=rock%20roll&lang=de"

ROWS = {
    "parameter": ("/search?q={agent1Output}&limit=3", MUSEUM, f"/search?q={MUSEUM_ENCODED}&limit=3"),
    "last parameter, with a line break of the model": (
        "/search?q={agent1Output}",
        f" {MUSEUM}\n",
        f"/search?q={MUSEUM_ENCODED}",
    ),
    "part of a parameter": ("/s?q=about:{agent1Output}:x", "a&b", "/s?q=about:a%26b:x"),
    "behind a parameter without a value": ("/s?flag&q={agent1Output}", "a&b=c", "/s?flag&q=a%26b%3Dc"),
    "question mark in a query": ("/s?a=1?b={agent1Output}", "c?d=e", "/s?a=1?b=c%3Fd%3De"),
    "a parameter that it would add": ("/s?q={agent1Output}", "x&admin=true#", "/s?q=x%26admin%3Dtrue%23"),
    "lines": ("/s?q={agent1Output}", "one\r\ntwo\tthree", "/s?q=one%0D%0Atwo%09three"),
    "what no URL has": ("/s?q={agent1Output}", '"<a>{b}[c]\\^`|', "/s?q=%22%3Ca%3E%7Bb%7D%5Bc%5D%5C%5E%60%7C"),
    "what may stand in a URL": (
        "/s?q={agent1Output}",
        "a/b:c@d!e$f'g(h)i*j+k,l;m-n._~",
        "/s?q=a/b:c@d!e$f'g(h)i*j+k,l;m-n._~",
    ),
    "encoded already": ("/s?q={agent1Output}", "K%C3%B6ln%20%26", "/s?q=K%C3%B6ln%20%26"),
    "a percent sign of its own": ("/s?q={agent1Output}", "50% of 100%", "/s?q=50%25%20of%20100%25"),
    "emoji": ("/s?q={agent1Output}", "\U0001f3b8", "/s?q=%F0%9F%8E%B8"),
    "empty": ("/s?q={agent1Output}&x=1", "", "/s?q=&x=1"),
    "marks of the program": ("/s?q={agent1Output}", "a\ufdd1&b=\ufdd0c", "/s?q=a%26b%3Dc"),
    "part of the path": ("/wiki/{agent1Output}", "AC/DC? \u00c4h & #1", "/wiki/AC/DC%3F%20%C3%84h%20%26%20%231"),
    "middle of the path": ("/{agent1Output}/page.html?x=1", "a?b=c#d", "/a%3Fb%3Dc%23d/page.html?x=1"),
    "end of a name in the path": ("/page-{agent1Output}.html", "1?x", "/page-1%3Fx.html"),
    "name of a parameter": ("/s?{agent1Output}=1", "a=b&c", "/s?a%3Db%26c=1"),
    "part of a name": ("/s?x{agent1Output}", "a&b", "/s?xa%26b"),
    "whole query": ("/s?{agent1Output}", READY_MADE, f"/s?{READY_MADE}"),
    "whole query before a fragment": ("/s?{agent1Output}#top", READY_MADE, f"/s?{READY_MADE}"),
    "rest of the query": ("/s?key=1&{agent1Output}", READY_MADE, f"/s?key=1&{READY_MADE}"),
    "path and query behind the host": ("{agent1Output}", "/s?q=a%20b&c=d", "/s?q=a%20b&c=d"),
    "an index": ("/s?q={agent1Output[0]}&r={agent1Output!r:.3}", "&b", "/s?q=%26&r='%26b"),
}
