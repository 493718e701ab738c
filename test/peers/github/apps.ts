/** The peer's operations on Apps: finding an installation, and minting its tokens. */
import type { ApiCall, ApiReply } from './peer.ts'
import type { Permissions } from './tokens.ts'

const INSTALLATION = 77

/** By operation id. */
export const APP_HANDLERS: Readonly<Record<string, (call: ApiCall) => ApiReply>> = {
  'apps/get-repo-installation': ({ peer, params }) => ({
    status: 200,
    body: {
      id: INSTALLATION,
      account: account(peer.url, params['owner'] ?? ''),
      repository_selection: 'selected',
      access_tokens_url: `${peer.apiUrl}/app/installations/${INSTALLATION}/access_tokens`,
      repositories_url: `${peer.apiUrl}/installation/repositories`,
      html_url: `${peer.url}/settings/installations/${INSTALLATION}`,
      app_id: peer.tokens.appId,
      target_id: 1,
      target_type: 'Organization',
      permissions: peer.permissions,
      events: [],
      created_at: '2026-01-01T00:00:00Z',
      updated_at: '2026-01-01T00:00:00Z',
      single_file_name: null,
      app_slug: 'hangar',
      suspended_by: null,
      suspended_at: null,
    },
  }),
  'apps/create-installation-access-token': ({ peer, params, body }) => {
    if (params['installation_id'] !== String(INSTALLATION)) return { status: 404, body: { message: 'Not Found' } }
    const { repositories, permissions = peer.permissions } = (body ?? {}) as {
      repositories?: string[]
      permissions?: Permissions
    }
    const found = repositories?.map((name) => peer.repos.find((repo) => repo.name === name))
    const refused = Object.entries(permissions).find(
      ([name, wanted]) => peer.permissions[name] !== 'write' && peer.permissions[name] !== wanted,
    )
    if (refused !== undefined || found?.includes(undefined))
      return {
        status: 422,
        body: { message: 'The permissions requested are not granted to this installation.', documentation_url: '' },
      }
    const ids = found?.map((repo) => repo?.id ?? 0) ?? null
    const minted = peer.tokens.mint({ repositories: ids, permissions, expiresAt: Date.now() + peer.tokenLifeMs })
    return {
      status: 201,
      body: {
        token: minted.token,
        expires_at: new Date(minted.expiresAt).toISOString(),
        permissions,
        repository_selection: 'selected',
      },
    }
  },
}

function account(url: string, login: string) {
  const at = `${url}/users/${login}`
  const links = [
    'html',
    'followers',
    'following',
    'gists',
    'starred',
    'subscriptions',
    'organizations',
    'repos',
    'events',
  ]
  return {
    login,
    id: 1,
    node_id: 'O_1',
    avatar_url: `${at}/avatar`,
    gravatar_id: '',
    url: at,
    ...Object.fromEntries(links.map((name) => [`${name}_url`, at])),
    received_events_url: at,
    type: 'Organization',
    site_admin: false,
  }
}
