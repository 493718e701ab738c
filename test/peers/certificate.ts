/** A certificate of its own for a server on the loopback address, made when it is needed. */
import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

export interface Certificate {
  readonly key: string
  readonly cert: string
}

/** null where there is no openssl. */
export function makeCertificate(): Certificate | null {
  const dir = mkdtempSync(join(tmpdir(), 'hangar-certificate-'))
  try {
    const [key, cert] = [join(dir, 'key.pem'), join(dir, 'cert.pem')]
    const curve = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes']
    const names = ['-subj', '/CN=peer', '-addext', 'subjectAltName=IP:127.0.0.1']
    const made = spawnSync('openssl', ['req', '-x509', ...curve, ...names, '-days', '2', '-keyout', key, '-out', cert])
    if (made.status !== 0) return null
    return { key: readFileSync(key, 'utf8'), cert: readFileSync(cert, 'utf8') }
  } finally {
    rmSync(dir, { recursive: true, force: true })
  }
}
