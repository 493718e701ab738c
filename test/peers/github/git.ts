/** git's own `http-backend` for the peer's repositories, as a CGI program. */
import { spawn } from 'node:child_process'
import type { IncomingMessage, ServerResponse } from 'node:http'

/** Runs it for one request and sends its answer on. `cut`: the work is done, and the answer never comes. */
export function serveGit(
  req: IncomingMessage,
  res: ServerResponse,
  at: { readonly root: string; readonly path: string; readonly query: string; readonly cut: boolean },
): void {
  const child = spawn('git', ['http-backend'], {
    env: {
      PATH: process.env['PATH'] ?? '/usr/bin:/bin',
      HOME: '/nonexistent',
      GIT_CONFIG_NOSYSTEM: '1',
      GIT_CONFIG_COUNT: '2',
      GIT_CONFIG_KEY_0: 'safe.directory',
      GIT_CONFIG_VALUE_0: '*',
      GIT_CONFIG_KEY_1: 'http.receivepack',
      GIT_CONFIG_VALUE_1: 'true',
      GIT_PROJECT_ROOT: at.root,
      GIT_HTTP_EXPORT_ALL: '1',
      PATH_INFO: at.path,
      QUERY_STRING: at.query,
      REQUEST_METHOD: req.method ?? 'GET',
      CONTENT_TYPE: req.headers['content-type'] ?? '',
      ...(req.headers['content-length'] === undefined ? {} : { CONTENT_LENGTH: req.headers['content-length'] }),
      HTTP_CONTENT_ENCODING: String(req.headers['content-encoding'] ?? ''),
      GIT_PROTOCOL: String(req.headers['git-protocol'] ?? ''),
      REMOTE_USER: 'peer',
    },
    stdio: ['pipe', 'pipe', 'ignore'],
  })
  child.stdin.on('error', () => {})
  req.pipe(child.stdin)
  let head = Buffer.alloc(0)
  child.stdout.on('data', (chunk: Buffer) => {
    if (at.cut) return
    if (res.headersSent) return void res.write(chunk)
    head = Buffer.concat([head, chunk])
    const end = head.indexOf('\r\n\r\n')
    if (end === -1) return
    for (const line of head.subarray(0, end).toString('latin1').split('\r\n')) {
      const [name = '', value = ''] = [line.slice(0, line.indexOf(':')), line.slice(line.indexOf(':') + 1).trim()]
      if (name.toLowerCase() === 'status') res.statusCode = Number(value.slice(0, 3))
      else res.setHeader(name, value)
    }
    res.write(head.subarray(end + 4))
  })
  child.once('close', () => (at.cut ? res.destroy() : res.end()))
}
