/**
 * The server proves that it began this session before it is sent the token: after it has ended, another program may
 * have taken its port. On plain HTTP from another device browsers have no `crypto.subtle`, so the hash is computed here.
 */

const text = new TextEncoder();
const hex = (bytes) => [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
const unhex = (digits) => Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));

const PRIMES = [];
for (let n = 2; PRIMES.length < 64; n += 1) if (PRIMES.every((prime) => n % prime)) PRIMES.push(n);
// The constants of FIPS 180-4, 4.2.2 and 5.3.3: the first 32 bits of the fractional parts of roots of primes.
const fraction = (root) => ((root % 1) * 2 ** 32) | 0;
const ROUNDS = PRIMES.map((prime) => fraction(Math.cbrt(prime)));
const START = PRIMES.slice(0, 8).map((prime) => fraction(Math.sqrt(prime)));
const rotate = (word, by) => (word >>> by) | (word << (32 - by));

/** SHA-256 of at most some megabytes. @param {Uint8Array} bytes @returns {Uint8Array} 32 bytes */
function sha256(bytes) {
  const padded = new DataView(new ArrayBuffer(64 * Math.ceil((bytes.length + 9) / 64)));
  new Uint8Array(padded.buffer).set(bytes);
  padded.setUint8(bytes.length, 0x80);
  padded.setUint32(padded.byteLength - 4, 8 * bytes.length);
  const state = Int32Array.from(START);
  const w = new Int32Array(64);
  for (let at = 0; at < padded.byteLength; at += 64) {
    for (let n = 0; n < 64; n += 1) {
      if (n < 16) w[n] = padded.getInt32(at + 4 * n);
      else {
        const [late, early] = [w[n - 2], w[n - 15]];
        w[n] = w[n - 16] + (rotate(early, 7) ^ rotate(early, 18) ^ (early >>> 3))
          + w[n - 7] + (rotate(late, 17) ^ rotate(late, 19) ^ (late >>> 10));
      }
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let n = 0; n < 64; n += 1) {
      const one = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + ROUNDS[n] + w[n];
      const two = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      [a, b, c, d, e, f, g, h] = [(one + two) | 0, a, b, c, (d + one) | 0, e, f, g];
    }
    [a, b, c, d, e, f, g, h].forEach((word, n) => { state[n] += word; });
  }
  const digest = new DataView(new ArrayBuffer(32));
  state.forEach((word, n) => digest.setInt32(4 * n, word));
  return new Uint8Array(digest.buffer);
}

/** HMAC-SHA256. @param {Uint8Array} key of at most 64 bytes @param {Uint8Array} message */
function hmac(key, message) {
  const padded = (mask) => Uint8Array.from({ length: 64 }, (_, n) => (key[n] ?? 0) ^ mask);
  return sha256(Uint8Array.from([...padded(0x5c), ...sha256(Uint8Array.from([...padded(0x36), ...message]))]));
}

/**
 * What the page asks the server, and how it checks the answer.
 * @param {string} token the part before the dot opens the session; the key behind it checks proofs, and opens nothing
 * @returns {{question: {id: string, nonce: string}, isProof: (answer: any) => boolean} | null} null for a token of an
 *     older version
 */
export function challenge(token) {
  const [opens, key] = token.split(".");
  if (!key) return null;
  const nonce = hex(crypto.getRandomValues(new Uint8Array(16)));
  const expected = hex(hmac(unhex(key), text.encode(nonce)));
  return { question: { id: hex(sha256(text.encode(opens))).slice(0, 16), nonce }, isProof: (answer) => answer?.proof === expected };
}
