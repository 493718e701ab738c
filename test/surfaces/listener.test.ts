/** The one port, while a client sends the head of its request a byte at a time. */
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { connect } from 'node:net'
import express from 'express'
import t from 'tap'
import type { SmartHttp } from '../../gateway/http/smart-http.ts'
import { createListener } from '../../surfaces/listener.ts'
import { createMetrics } from '../../surfaces/metrics.ts'

t.test('a head that comes a byte at a time is given up, and others are answered', { timeout: 60_000 }, async (t) => {
  const metrics = createMetrics()
  const app = express()
  app.get('/healthz', (_req, res) => void res.json({ ok: true }))
  const listener = createListener({ smartHttp: {} as SmartHttp, metrics, app: Promise.resolve(app) })
  t.teardown(() => {
    listener.closeAllConnections()
    listener.close()
    metrics.close()
  })
  listener.listen(0, '127.0.0.1')
  await once(listener, 'listening')
  const { port } = listener.address() as AddressInfo
  const socket = connect(port, '127.0.0.1')
  let said = ''
  socket.on('error', () => {})
  socket.on('data', (chunk: Buffer) => {
    said += chunk.toString('latin1')
  })
  socket.write('GET /git/acme/app.git/info/refs HTTP/1.1\r\nhost: ')
  const timer = setInterval(() => socket.write('x'), 100)
  t.teardown(() => clearInterval(timer))
  const answer = await fetch(`http://127.0.0.1:${port}/healthz`)
  t.equal(answer.status, 200)
  await answer.arrayBuffer()
  await once(socket, 'close')
  t.match(said, /^HTTP\/1\.1 408 /)
})
