/** The operations that give a session's work back: events, patch, pull, artifacts. */
import { Type } from '@sinclair/typebox'
import { parseOid } from '../../domain/names.ts'
import { artifactRestPath } from '../../exchange/artifact-uri.ts'
import { ArtifactShape, EventShape, listOf, SessionRef } from '../shapes.ts'
import { artifactView, eventView } from '../views.ts'
import { type ArtifactLink, fitPage, json, type Operation, operation } from './operation.ts'
import { sessionMeant } from './refs.ts'

const strict = { additionalProperties: false } as const

export const getEvents = operation({
  name: 'get_events',
  summary: "Reads a session's run events.",
  restNote: 'With Accept: text/event-stream they come live, resumable by Last-Event-ID.',
  scope: 'read',
  method: 'get',
  path: '/api/sessions/{ref}/events',
  cli: 'session events',
  tool: {
    title: 'Read the events of a session',
    advice: 'What the agent said and did, in order. Give next_cursor as since for what follows.',
    example: { ref: 'csv-fix', since: 0, limit: 100 },
    effect: 'reads',
  },
  input: Type.Object(
    {
      ref: SessionRef,
      since: Type.Optional(Type.Integer({ minimum: 0, default: 0, description: 'Only events after this seq.' })),
      limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 1000, default: 200, description: 'Events a page.' })),
    },
    strict,
  ),
  output: listOf(EventShape),
  status: 200,
  handle: async (call, input) => {
    const name = await sessionMeant(call, input.ref)
    const limit = input.limit ?? 200
    const events = await call.services.events.read(name, input.since ?? 0, limit)
    const shown = fitPage(call.surface, events)
    const last = shown.at(-1)
    const full = events.length === limit || shown.length < events.length
    return json(200, {
      items: shown.map(eventView),
      next_cursor: full && last !== undefined ? String(last.seq) : null,
    })
  },
})

export const getPatch = operation({
  name: 'get_session_patch',
  summary: "The session's whole change as one patch, untracked files included; git apply takes it as it is.",
  scope: 'read',
  method: 'get',
  path: '/api/sessions/{ref}/patch',
  cli: 'session patch',
  tool: {
    title: "Get a session's change as a patch",
    advice:
      'Save the text as it is and run git apply on the base that the work was handed over from; from: handover leaves out what was handed over.',
    example: { ref: 'csv-fix' },
    effect: 'reads',
    bytes: {
      limit: ({ maxPatchBytes }) => maxPatchBytes,
      elsewhere: ({ ref, turn, from }) => {
        const query = new URLSearchParams({
          ...(turn === undefined ? {} : { turn: String(turn) }),
          ...(from === undefined ? {} : { from }),
        }).toString()
        return {
          path: `/api/sessions/${ref}/patch${query === '' ? '' : `?${query}`}`,
          command: `hangar session patch ${ref}${turn === undefined ? '' : ` --turn ${turn}`}${from === undefined ? '' : ` --from ${from}`}`,
        }
      },
    },
  },
  input: Type.Object(
    {
      ref: SessionRef,
      turn: Type.Optional(Type.Integer({ minimum: 1, description: "Up to this turn's end; default: as it is now." })),
      from: Type.Optional(
        Type.Union([Type.Literal('base'), Type.Literal('handover')], {
          description: 'From the base (default), or from what was handed over.',
        }),
      ),
    },
    strict,
  ),
  output: null,
  contentType: 'text/x-diff',
  status: 200,
  handle: async (call, input) => {
    const name = await sessionMeant(call, input.ref)
    const content = await call.services.out.patch(name, { turn: input.turn ?? null, from: input.from ?? 'base' })
    return { kind: 'bytes', contentType: 'text/x-diff', content, download: null }
  },
})

const pull = operation({
  name: 'pull_session',
  summary:
    'A git bundle of the session branch and its checkpoint, without what the caller has; 204 when nothing is new.',
  scope: 'read',
  method: 'get',
  path: '/api/sessions/{ref}/pull',
  cli: 'session pull',
  input: Type.Object(
    {
      ref: SessionRef,
      have: Type.Optional(
        Type.Union([Type.Array(Type.String(), { maxItems: 256 }), Type.String()], {
          description: 'Commit ids that the caller has, to 256.',
        }),
      ),
    },
    strict,
  ),
  output: null,
  contentType: 'application/x-git-bundle',
  status: 200,
  handle: async (call, input) => {
    const name = await sessionMeant(call, input.ref)
    const have = input.have === undefined ? [] : Array.isArray(input.have) ? input.have : [input.have]
    const bundle = await call.services.out.pull(name, have.map(parseOid))
    return bundle === null
      ? { kind: 'empty' }
      : { kind: 'stream', contentType: 'application/x-git-bundle', content: bundle }
  },
})

export const listArtifacts = operation({
  name: 'list_artifacts',
  summary: 'Lists the files that the agent handed back, turn by turn.',
  scope: 'read',
  method: 'get',
  path: '/api/sessions/{ref}/artifacts',
  cli: 'session artifacts',
  tool: {
    title: 'List artifacts',
    advice: 'Read one with get_artifact, or as the resource that its uri names.',
    example: { ref: 'csv-fix' },
    effect: 'reads',
    artifacts: (body) => (body as { items: ArtifactLink[] }).items,
  },
  input: Type.Object({ ref: SessionRef }, strict),
  output: listOf(ArtifactShape),
  status: 200,
  handle: async (call, { ref }) => {
    const name = await sessionMeant(call, ref)
    const items = await call.services.out.artifacts(name)
    return json(200, { items: items.map((artifact) => artifactView(name, artifact)), next_cursor: null })
  },
})

export const getArtifact = operation({
  name: 'get_artifact',
  summary: 'Downloads one artifact.',
  scope: 'read',
  method: 'get',
  path: '/api/sessions/{ref}/artifacts/{turn}/{path}',
  tool: {
    title: 'Get an artifact',
    advice: 'Text comes as text, an image as an image, all else as base64.',
    example: { ref: 'csv-fix', turn: 1, path: 'coverage.html' },
    effect: 'reads',
    bytes: {
      limit: ({ inlineArtifactBytes }) => inlineArtifactBytes,
      elsewhere: ({ ref, turn, path }) => ({
        path: artifactRestPath(ref, turn, path),
        command: `hangar session artifacts ${ref} --get ${path}`,
      }),
    },
  },
  input: Type.Object(
    {
      ref: SessionRef,
      turn: Type.Integer({ minimum: 1, description: 'The turn that handed it back.' }),
      path: Type.String({ description: 'As list_artifacts and wait_for_turn give it.' }),
    },
    strict,
  ),
  output: null,
  contentType: 'application/octet-stream',
  status: 200,
  handle: async (call, input) => {
    const name = await sessionMeant(call, input.ref)
    const { entry, content } = await call.services.out.artifact(name, input.turn, input.path)
    return {
      kind: 'bytes',
      contentType: entry.contentType,
      content,
      download: entry.path.split('/').at(-1) ?? 'artifact',
    }
  },
})

export const SESSION_OUT_OPERATIONS: readonly Operation[] = [getEvents, getPatch, pull, listArtifacts, getArtifact]
