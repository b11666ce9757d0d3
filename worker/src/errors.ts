// Errors as the REST API returns them: a code, a text and the HTTP status for the code. The runtime drops the status of
// what the binding throws, so this table restores it. Sources: Cloudflare's tables of errors of Workers AI and AI Gateway.

export interface ApiError {
  /** The API's own code; null if it gave none, and so it is unknown what was done. */
  code: number | null;
  message: string;
}

const STATUS_OF_CODE: Record<number, number> = {
  971: 429,
  2001: 400,
  2003: 429,
  2009: 401,
  2016: 424,
  2017: 424,
  2021: 402,
  2029: 424,
  2030: 424,
  2041: 429,
  3003: 400,
  3006: 413,
  3007: 408,
  3008: 408,
  3021: 429,
  3023: 403,
  3030: 400,
  3036: 429,
  3039: 400,
  3040: 429,
  3041: 403,
  3042: 404,
  3046: 408,
  3050: 503,
  4006: 429,
  5001: 500,
  5004: 400,
  5005: 405,
  5006: 400,
  5007: 400,
  5016: 403,
  5018: 403,
  5019: 405,
  5025: 400,
  5028: 400,
  5035: 403,
  7000: 400,
  7010: 503,
  7013: 503,
  8007: 400,
  10000: 401,
  10013: 500,
};

/** Characters of a text that are passed on: it may quote a prompt as long as the request. */
const MAX_CHARACTERS = 500;

/**
 * The reply for an error. Without a code it is a bare 502, which callers treat as a submit whose outcome is unknown: the
 * binding failed, and the batch may have been accepted.
 */
export function errorReply({ code, message }: ApiError, headers: Record<string, string> = {}): Response {
  if (code === null) {
    return new Response("The AI binding failed without a code.\n", { status: 502 });
  }
  const errors = [{ code, message: message.slice(0, MAX_CHARACTERS) }];
  return Response.json({ success: false, errors }, { status: STATUS_OF_CODE[code] ?? 500, headers });
}
