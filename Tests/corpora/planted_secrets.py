"""Texts with a secret in them, by the way in which users write it, and texts that only look as if they had one."""

from __future__ import annotations

SECRET = "Canary77x"

URLS = (
    f"https://me:{SECRET}@host/x",
    f"https://{SECRET}@host/1",
    f"https://me:a@{SECRET}@host",
    f"https://:{SECRET}@host:8080/x?n=1",
    f"https://host/x?api_key={SECRET}",
    f"https://host/x?n=1&apiKey={SECRET}&m=2",
    f"https://host/x?api-key={SECRET}",
    f"https://host/x?sig={SECRET}&se=2030",
    f"https://host/x?access_key={SECRET}",
    f"https://host/x?X-Amz-Signature={SECRET}",
    f"https://host/x?X-Amz-Security-Token={SECRET}&a=b",
    f"https://host/x?subscription-key={SECRET}",
    f"https://host/x?a=b;password={SECRET}",
    f"https://host/x?api%5Fkey={SECRET}",
    f"https://host/x?auth[token]={SECRET}",
    f"https://host/x#access_token={SECRET}",
    f"https://host/x?client_secret={SECRET}#top",
    f"wss://host/x?session_token={SECRET}",
)
"""Addresses."""

DSNS = (
    f"postgresql://me:{SECRET}@host:5432/db?sslmode=require",
    f"postgresql://host/db?user=me&password={SECRET}",
    f"mongodb+srv://me:{SECRET}@cluster.example/db",
    f"redis://:{SECRET}@host:6379/0",
    f"amqp://me:{SECRET}@host/vhost",
    f"jdbc:postgresql://host/db?user=me&password={SECRET}",
    f"host=db user=me password={SECRET} dbname=x",
    f"host=db user=me password='{SECRET} more' dbname=x",
    f"Server=db;User Id=me;Password={SECRET};",
    f"DefaultEndpointsProtocol=https;AccountName=me;AccountKey={SECRET};EndpointSuffix=x",
    f"Endpoint=sb://host/;SharedAccessKeyName=n;SharedAccessKey={SECRET}",
    f"me:{SECRET}@tcp(host:3306)/db",
)
"""Connection strings of databases and queues."""

DATA = (
    f"password={SECRET}",
    f"user=me&password={SECRET}&n=1",
    f"grant_type=client_credentials&client_secret={SECRET}",
    f"access_key={SECRET}",
    f'{{"apiKey": "{SECRET}"}}',
    f'{{"user": "me", "pass_phrase": 1, "passphrase": "{SECRET}"}}',
    f'{{"nested": {{"x-api-key":"{SECRET}"}}}}',
    f'{{"apiKey": "{SECRET}',
    f"{{'apiKey': '{SECRET}'}}",
    f'{{"token": ["{SECRET}"]}}',
    f'{{"jwt": "{SECRET}"}}',
    f'{{"a": {{"signature":"{SECRET}"}}}}',
    f"api_key: {SECRET}",
    f"database:\n  user: me\n  db-password: '{SECRET}'\n",
    f"clientSecret: {SECRET}",
    f"run --port 1 --api-key {SECRET} --verbose",
    f"run --db-password \\\n  {SECRET}",
    f"export AWS_SECRET_ACCESS_KEY={SECRET}",
    f'$env:OPENAI_API_KEY = "{SECRET}"',
    f"HF_TOKEN={SECRET}",
    f"session_cookie={SECRET}&n=1",
)
"""Bodies of requests."""

HEADERS = (
    f"Authorization: Bearer {SECRET}",
    f"Authorization: Basic {SECRET}",
    f"Authorization: {SECRET}",
    f"authorization:{SECRET}",
    f"X-Api-Key: {SECRET}",
    f"api-key: {SECRET}",
    f"x-goog-api-key: {SECRET}",
    f"Ocp-Apim-Subscription-Key: {SECRET}",
    f"Proxy-Authorization: Basic {SECRET}",
    f"Cookie: session={SECRET}; a=b",
    f"X-Auth-Token: {SECRET}",
    f"X-Amz-Security-Token: {SECRET}",
    f"Proxy-Authorization: {SECRET}",
    f"GET /x\\nX-Access-Token: {SECRET}",
    f"Accept: */*\nSet-Cookie: a={SECRET}; Path=/",
)
"""Headers, written as one text."""

CURL = (
    ("-u", f"me:{SECRET}"),
    (f"-ume:{SECRET}",),
    (f"-u{SECRET}",),
    (f"-su{SECRET}",),
    ("--user", SECRET),
    ("-su", f"me:{SECRET}"),
    ("-sSLU", f"me:{SECRET}"),
    ("-iE", f"cert.pem:{SECRET}"),
    (f"--user={SECRET}",),
    ("-U", f"me:{SECRET}"),
    (f"-Ume:{SECRET}",),
    (f"-HX-Api-Key: {SECRET}",),
    (f"-HAuthorization: Bearer {SECRET}",),
    ("-H", f"X-Api-Key: {SECRET}"),
    ("--header", f"Cookie: a={SECRET}"),
    (f"--header=X-Auth-Token: {SECRET}",),
    ("-d", f"password={SECRET}"),
    (f"-dpassword={SECRET}",),
    (f"--data-raw=user=me&access_key={SECRET}",),
    ("--json", f'{{"apiKey": "{SECRET}"}}'),
    ("--json", f"[{{'apiKey': '{SECRET}'}}]"),
    ("-F", f"token={SECRET}"),
    ("-b", f"session={SECRET}"),
    (f"-bsession={SECRET}",),
    ("--cookie", f"session={SECRET}"),
    ("--oauth2-bearer", SECRET),
    ("-E", f"cert.pem:{SECRET}"),
    (f"-Ecert.pem:{SECRET}",),
    ("--pass", SECRET),
    ("-x", f"http://me:{SECRET}@proxy:8080"),
    (f"-xme:{SECRET}@proxy:8080",),
    ("--url-query", f"sig={SECRET}"),
    ("--url", f"https://host/x?sig={SECRET}"),
    ("-e", f"https://me:{SECRET}@host/"),
)
"""Arguments of curl, before the URL."""

HARMLESS = (
    "The key: value pairs and tokens",
    "Tell me the password: rules and the token: limits",
    "https://host/x?n=1&author=me",
    "max_tokens=300",
    "the author=me said so",
    "Authorization: Bearer {my_token}",
    "Order by sort_key=name, then by id",
    "def call(api_key: str, access_token: str | None) -> None",
    "Give the server --api-key or set it in the file",
    "Cookies: which ones does the page set?",
    "The x-axis: tokens, the y-axis: key",
    "https://host/x?key={my_key}",
    "-d n=1",
    "user@example.org",
    "a:b",
)
"""What is shown as it is."""
