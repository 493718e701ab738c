// Loaded into a server by --import: it is killed with -9 at its Nth operation on the outside (a file written, a process started, bytes to
// one, a request or an answer sent), before it when N is even, after it when odd. HANGAR_KILL_AT=0 only counts; the count is kept in HANGAR_KILL_COUNT.
// With HANGAR_KILL_WHEN operations count while that file is there.
import childProcess from 'node:child_process'
import { existsSync, writeFileSync } from 'node:fs'
import promises from 'node:fs/promises'
import http, { ServerResponse } from 'node:http'
import https from 'node:https'
import { syncBuiltinESMExports } from 'node:module'
import net from 'node:net'

const at = Number(process.env.HANGAR_KILL_AT ?? 0)
const countFile = process.env.HANGAR_KILL_COUNT
const whenFile = process.env.HANGAR_KILL_WHEN
let count = 0

function operation(act) {
  if (whenFile !== undefined && !existsSync(whenFile)) return act()
  count += 1
  if (countFile !== undefined && count % 10 === 0) writeFileSync(countFile, String(count))
  if (count !== at) return act()
  if (at % 2 === 0) process.kill(process.pid, 'SIGKILL')
  const result = act()
  const die = () => process.kill(process.pid, 'SIGKILL')
  if (typeof result?.then === 'function') result.then(die, die)
  else setImmediate(die)
  return result
}

for (const name of ['writeFile', 'rename', 'link', 'rm', 'mkdir', 'appendFile', 'chmod', 'unlink']) {
  const original = promises[name]
  promises[name] = (...args) => operation(() => original(...args))
}
const { spawn } = childProcess
childProcess.spawn = (...args) => {
  const child = operation(() => spawn(...args))
  if (child.stdin) {
    const write = child.stdin.write.bind(child.stdin)
    child.stdin.write = (...bytes) => operation(() => write(...bytes))
  }
  return child
}
// Git is started by a small process, which is told so, and its input goes over sockets.
const { fork } = childProcess
childProcess.fork = (...args) => {
  const child = operation(() => fork(...args))
  const send = child.send.bind(child)
  child.send = (...message) => operation(() => send(...message))
  return child
}
const { connect } = net
net.connect = (...args) => {
  const socket = connect(...args)
  const write = socket.write.bind(socket)
  socket.write = (...bytes) => operation(() => write(...bytes))
  return socket
}
for (const module of [http, https]) {
  const { request } = module
  module.request = (...args) => operation(() => request(...args))
}
const { end } = ServerResponse.prototype
ServerResponse.prototype.end = function (...args) {
  return operation(() => end.apply(this, args))
}
syncBuiltinESMExports()
