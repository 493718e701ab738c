/** The Express application: what is told of the server itself, MCP, and REST; each fault ends as a problem document. */
import express from 'express'
import { errors } from '../domain/errors.ts'
import type { McpEndpoint } from './mcp/endpoint.ts'
import type { ServedMetrics } from './metrics.ts'
import { sendProblem } from './problem.ts'

export function createApp({
  metrics,
  publicKey,
  document,
  mcp,
  rest,
}: {
  readonly metrics: ServedMetrics
  /** The store's own, armored. */
  readonly publicKey: string
  /** The OpenAPI document. */
  readonly document: unknown
  readonly mcp: Pick<McpEndpoint, 'handle'>
  readonly rest: express.RequestHandler
}): express.Express {
  const app = express()
  app.disable('x-powered-by')
  app.disable('etag')
  app.set('query parser', 'simple')
  app.get('/healthz', (_req, res) => void res.json({ ok: true }))
  app.get('/readyz', (_req, res) => void res.json({ ok: true }))
  app.get('/metrics', async (_req, res) => {
    const { contentType, body } = await metrics.text()
    res.setHeader('Content-Type', contentType)
    res.end(body)
  })
  app.get('/.well-known/hangar-key.asc', (_req, res) => void res.type('application/pgp-keys').send(publicKey))
  app.get('/openapi.json', (_req, res) => void res.json(document))
  app.all('/mcp', mcp.handle)
  // There is no authorization server: clients that look for one must hear that, not that they lack a token.
  app.use('/.well-known', (req: express.Request, res: express.Response) =>
    sendProblem(res, errors.notFound(`there is no ${req.originalUrl.split('?')[0]}`)),
  )
  app.use(rest)
  app.use((error: unknown, _req: express.Request, res: express.Response, _next: express.NextFunction) =>
    sendProblem(res, asRefusal(error)),
  )
  return app
}

function asRefusal(error: unknown): unknown {
  return error instanceof URIError ? errors.invalidRequest('the path is not percent-encoded UTF-8') : error
}
