/** The objects of deploy/kubernetes, as kustomize gives them. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { loadAll } from 'js-yaml'
import type { ApiObject } from './objects.ts'
import type { Rule } from './peer.ts'

export const DEPLOY_DIR = fileURLToPath(new URL('../../../../deploy/kubernetes', import.meta.url))

/** All objects, by the files that kustomization.yaml names. */
export function deployedObjects(): ApiObject[] {
  const load = (name: string) => loadAll(readFileSync(join(DEPLOY_DIR, name), 'utf8')) as ApiObject[]
  const [kustomization] = load('kustomization.yaml') as unknown as { resources: string[] }[]
  // Through JSON: dates are of no object.
  return (kustomization?.resources ?? []).flatMap((name) => JSON.parse(JSON.stringify(load(name))) as ApiObject[])
}

/** What the server's service account may do among sandboxes. */
export function deployedRules(): Rule[] {
  return deployedObjects()
    .filter(({ kind }) => kind === 'Role')
    .flatMap((role) => role['rules'] as Rule[])
}
