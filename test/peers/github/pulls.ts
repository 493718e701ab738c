/** The peer's pull requests, comments and check runs: kept, listed, and answered in GitHub's published shapes. */
import { sampleOf } from './openapi.ts'
import type { ApiCall, ApiReply, GithubPeer } from './peer.ts'

export interface PeerPull {
  readonly number: number
  readonly head: string
  readonly base: string
  readonly draft: boolean
  title: string
  body: string
  state: 'open' | 'closed'
}

export interface PeerComment {
  readonly id: number
  readonly issue: number
  body: string
}

/** What the peer has of one repository. */
export class Pulls {
  readonly pulls: PeerPull[] = []
  readonly comments: PeerComment[] = []
  readonly checks: Record<string, unknown>[] = []
  /** Whether drafts are taken, as in private repositories of some plans they are not. */
  drafts = true

  constructor(peer: GithubPeer) {
    const handle = (id: string, handler: (call: ApiCall) => ApiReply) => peer.handlers.set(id, handler)
    const shown = (pull: PeerPull, params: ApiCall['params'], shape: string) => {
      const at = `${peer.url}/${params['owner']}/${params['repo']}/pull/${pull.number}`
      const full = sampleOf(shape) as { head: object; base: object }
      const { head, base, ...rest } = pull
      return { ...full, ...rest, html_url: at, head: { ...full.head, ref: head }, base: { ...full.base, ref: base } }
    }
    handle('pulls/list', ({ params, query }) => {
      const head = query.get('head')
      const found = this.pulls.filter(
        (pull) =>
          (head === null || head === `${params['owner']}:${pull.head}`) &&
          (query.get('state') ?? 'open') === pull.state,
      )
      return { status: 200, body: found.map((pull) => shown(pull, params, 'pull-request-simple')) }
    })
    handle('pulls/create', ({ params, body }) => {
      const refused = (message: string): ApiReply => ({
        status: 422,
        body: {
          message: 'Validation Failed',
          documentation_url: '',
          errors: [{ resource: 'PullRequest', code: 'custom', message }],
        },
      })
      if (this.pulls.some((pull) => pull.head === body.head && pull.base === body.base && pull.state === 'open'))
        return refused(`A pull request already exists for ${params['owner']}:${body.head}.`)
      if (body.draft === true && !this.drafts)
        return refused('Draft pull requests are not supported in this repository.')
      const { title, head, base } = body
      const number = this.pulls.length + 1
      const pull: PeerPull = {
        number,
        title,
        head,
        base,
        body: body.body ?? '',
        draft: body.draft === true,
        state: 'open',
      }
      this.pulls.push(pull)
      return { status: 201, body: shown(pull, params, 'pull-request') }
    })
    handle('pulls/update', ({ params, body }) => {
      const pull = this.pulls.find(({ number }) => String(number) === params['pull_number'])
      if (pull === undefined) return { status: 404, body: { message: 'Not Found' } }
      Object.assign(pull, body)
      return { status: 200, body: shown(pull, params, 'pull-request') }
    })
    const commentOf = (comment: PeerComment) => ({
      ...(sampleOf('issue-comment') as object),
      id: comment.id,
      body: comment.body,
    })
    handle('issues/list-comments', ({ params, query }) => {
      const all = this.comments.filter(({ issue }) => String(issue) === params['issue_number'])
      const [page, size] = [Number(query.get('page') ?? 1), Number(query.get('per_page') ?? 30)]
      return { status: 200, body: all.slice((page - 1) * size, page * size).map(commentOf) }
    })
    handle('issues/create-comment', ({ params, body }) => {
      const comment = { id: 500 + this.comments.length, issue: Number(params['issue_number']), body: body.body }
      this.comments.push(comment)
      return { status: 201, body: commentOf(comment) }
    })
    handle('issues/update-comment', ({ params, body }) => {
      const comment = this.comments.find(({ id }) => String(id) === params['comment_id'])
      if (comment === undefined) return { status: 404, body: { message: 'Not Found' } }
      comment.body = body.body
      return { status: 200, body: commentOf(comment) }
    })
    const checkOf = ({ id, name, head_sha, external_id }: Record<string, unknown>) => ({
      ...(sampleOf('check-run') as object),
      id,
      name,
      head_sha,
      external_id,
    })
    const forApps: ApiReply = { status: 403, body: { message: 'You must authenticate via a GitHub App.' } }
    handle('checks/create', ({ body, identity }) => {
      if (identity.kind !== 'installation') return forApps
      const check = { ...body, id: 900 + this.checks.length }
      this.checks.push(check)
      return { status: 201, body: checkOf(check) }
    })
    handle('checks/update', ({ params, body, identity }) => {
      if (identity.kind !== 'installation') return forApps
      const check = this.checks.find(({ id }) => String(id) === params['check_run_id'])
      if (check === undefined) return { status: 404, body: { message: 'Not Found' } }
      Object.assign(check, body)
      return { status: 200, body: checkOf(check) }
    })
    handle('checks/list-for-ref', ({ params, query }) => {
      const named = this.checks.filter(
        ({ head_sha, name }) => head_sha === params['ref'] && name === (query.get('check_name') ?? name),
      )
      // Of several of one name only the newest is shown unless all are asked for.
      const all = query.get('filter') === 'all' ? named : named.slice(-1)
      const [page, size] = [Number(query.get('page') ?? 1), Number(query.get('per_page') ?? 30)]
      const shown = all.slice((page - 1) * size, page * size).map(checkOf)
      return { status: 200, body: { total_count: all.length, check_runs: shown } }
    })
  }
}
