/** The small process of starter.ts: takes orders and sockets, each in the order of the other, and starts what is asked for. Ends with its parent. */
import { type ChildProcess, spawn } from 'node:child_process'
import { closeSync, openSync, rmSync } from 'node:fs'
import { createServer, type Socket } from 'node:net'
import { dirname } from 'node:path'
import type { StartOrder, StartReport } from './starter.ts'

const [, , path = ''] = process.argv
const sockets: Socket[] = []
const orders: StartOrder[] = []

// Nothing is read here: what is in a socket is for who gets it.
const server = createServer({ pauseOnConnect: true, allowHalfOpen: true }, (socket) => {
  socket.on('error', () => {})
  sockets.push(socket)
  serve()
})
server.listen({ path, backlog: 4_096 }, () => tell('ready'))
process.on('message', (order: StartOrder) => {
  orders.push(order)
  serve()
})
process.on('disconnect', () => {
  // Also of a parent that was killed; with what it had of the file system.
  rmSync(dirname(path), { recursive: true, force: true })
  process.exit(0)
})
// A terminal sends these to all of its programs; the parent decides what becomes of them.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => {})

/** A parent that has just gone is told nothing: `disconnect` ends all. */
function tell(report: StartReport | 'ready'): void {
  process.send?.(report, undefined, undefined, () => {})
}

function serve(): void {
  for (let order = orders[0]; order !== undefined; order = orders[0]) {
    const needed = 2 + (order.output === null ? 1 : 0) + (order.secret ? 1 : 0)
    if (sockets.length < needed) return
    orders.shift()
    start(order, sockets.splice(0, needed))
  }
}

function start({ id, file, args, cwd, env, output, secret }: StartOrder, given: Socket[]): void {
  let taken: number | null = null
  try {
    const [stdin, ...rest] = given
    const stdout = output === null ? rest.shift() : openSync(output, 'a')
    if (typeof stdout === 'number') taken = stdout
    const [stderr, third] = rest
    const stdio = [stdin, stdout, stderr, ...(secret ? [third] : [])] as (Socket | number)[]
    const child: ChildProcess = spawn(file, [...args], { cwd, env: { ...env }, detached: true, stdio })
    child.once('error', (error) => tell({ id, error: error.message }))
    child.once('exit', (status, signal) => tell({ id, status, signal }))
    if (child.pid !== undefined) tell({ id, pid: child.pid })
  } catch (error) {
    tell({ id, error: error instanceof Error ? error.message : String(error) })
  } finally {
    for (const socket of given) socket.destroy()
    if (taken !== null) closeSync(taken)
  }
}
