// Scripted conversations. A prompt picks one with a marker, [[mock:NAME]] or [[mock:NAME#tag]];
// the tag only separates the counters of `fail` (so two runs of one scenario don't share them).
//
// A scenario is a list of steps; step N answers the (N+1)-th model request after the marked prompt.
// A step may carry:
//   text      assistant text              thinking  reasoning text (anthropic only)
//   actions   abstract tool calls: {run}, {write:{path,content}}, {edit:{path,old,new}}, {read:{path}}, {tool:{name,input}}
//   usage     {input, output, cacheRead, cacheWrite}; `input` excludes the cached tokens
//   fail      {status, type, message, times, retryAfter}: refuse the first `times` requests of this step
//   hang      stream the text, then never finish (for cancel and timeout tests)
//   cut       stream the text, then drop the connection
//   delayMs   wait before the first byte
const U = (input, output, cacheRead = 0, cacheWrite = 0) => ({ input, output, cacheRead, cacheWrite });

export const scenarios = {
  hello: [{ text: 'Hello from the scripted model.', usage: U(120, 15, 4000, 300) }],
  again: [{ text: 'I remember the earlier turn.', usage: U(40, 9, 4300, 60) }],
  tools: [
    { text: 'I will write a file with the shell.', actions: [{ run: 'mkdir -p out && echo alpha > out/note.txt && cat out/note.txt' }], usage: U(200, 40, 4000, 500) },
    { text: 'Now I will edit a file.', actions: [{ edit: { path: 'greeting.txt', old: 'hello world', new: 'hello hangar' } }], usage: U(30, 50, 4500, 100) },
    { text: 'Now a command that fails.', actions: [{ run: 'echo to-stderr >&2; exit 3' }], usage: U(25, 30, 4600, 80) },
    { text: 'Done: wrote out/note.txt, edited greeting.txt, and saw exit code 3.', usage: U(20, 25, 4680, 40) },
  ],
  edit: [
    { text: 'Reading first.', actions: [{ read: { path: 'greeting.txt' } }], usage: U(50, 20, 4000, 100) },
    { actions: [{ edit: { path: 'greeting.txt', old: 'hello world', new: 'hello hangar' } }], usage: U(30, 50, 4100, 90) },
    { actions: [{ write: { path: 'created.txt', content: 'line one\nline two\n' } }], usage: U(30, 50, 4190, 90) },
    { text: 'Edited and created.', usage: U(20, 10, 4280, 20) },
  ],
  blocks: [
    { thinking: 'Two reads at once.', text: 'Reading two files in one message.', actions: [{ run: 'cat greeting.txt' }, { run: 'pwd >/dev/null; ls' }], usage: U(60, 44, 4000, 10) },
    { text: 'Both read.', usage: U(10, 5, 4070, 10) },
  ],
  badedit: [
    { actions: [{ edit: { path: 'greeting.txt', old: 'no such text', new: 'x' } }], usage: U(30, 20) },
    { text: 'The edit failed as expected.', usage: U(10, 5) },
  ],
  flaky: [{ fail: { status: 429, type: 'rate_limit_error', message: 'scripted rate limit', times: 2, retryAfter: 1 }, text: 'Recovered after two refusals.', usage: U(10, 5) }],
  flaky500: [{ fail: { status: 500, type: 'api_error', message: 'scripted server fault', times: 1 }, text: 'Recovered after a server fault.', usage: U(10, 5) }],
  err429: [{ fail: { status: 429, type: 'rate_limit_error', message: 'scripted rate limit', times: Infinity, retryAfter: 1 } }],
  err500: [{ fail: { status: 500, type: 'api_error', message: 'scripted server fault', times: Infinity } }],
  err400: [{ fail: { status: 400, type: 'invalid_request_error', message: 'scripted bad request', times: Infinity } }],
  err401: [{ fail: { status: 401, type: 'authentication_error', message: 'scripted bad key', times: Infinity } }],
  lateerr: [
    { text: 'One command, then the API refuses.', actions: [{ run: 'echo before-error' }], usage: U(100, 10) },
    { fail: { status: 400, type: 'invalid_request_error', message: 'scripted late failure', times: Infinity } },
  ],
  hang: [{ text: 'Starting a long answer', hang: true, usage: U(100, 1) }],
  slowtool: [
    { text: 'Running a slow command.', actions: [{ run: 'echo started > slow.txt; sleep 30; echo finished >> slow.txt' }], usage: U(100, 10) },
    { text: 'The slow command ended.', usage: U(100, 10) },
  ],
  cut: [{ text: 'This stream breaks', cut: true, usage: U(10, 2) }],
  huge: [
    { text: 'Printing a lot.', actions: [{ run: "node -e \"process.stdout.write('y'.repeat(25000)+'\\n')\"; head -c 400000 /dev/zero | tr '\\0' 'z'; echo" }], usage: U(10, 10) },
    { text: 'w'.repeat(300_000), usage: U(10, 75_000) },
  ],
  loop: Array.from({ length: 50 }, (_, i) => ({ text: `Step ${i}.`, actions: [{ run: `echo step-${i}` }], usage: U(1000, 200, 10_000, 1000) })),
  schema: [{ structured: { tests_added: 2, note: 'ok' }, text: '{"tests_added":2,"note":"ok"}', usage: U(10, 20) }, { text: 'Structured result sent.', usage: U(5, 5) }],
  // hangar's own: what an agent hands back through hangar-agent.
  ask: [
    { text: 'I need a decision.', actions: [{ run: 'hangar-agent question --option "Keep them" --option "Rename them" "Keep the names?"' }], usage: U(20, 10) },
    { text: 'I have asked.', usage: U(10, 5) },
  ],
  askTool: [
    { text: 'Which?', actions: [{ tool: { name: 'AskUserQuestion', input: { questions: [{ question: 'Red or blue?', header: 'Colour', multiSelect: false, options: [{ label: 'Red', description: 'r' }, { label: 'Blue', description: 'b' }] }] } } }], usage: U(20, 10) },
    { text: 'I went on without an answer.', usage: U(10, 5) },
  ],
  repaired: [
    { text: 'Doing the work.', actions: [{ run: 'echo work > work.txt' }], usage: U(20, 10) },
    { text: 'Done, without a result.', usage: U(10, 5) },
    { text: 'Handing the result back.', actions: [{ run: `hangar-agent result '{"tests_added":2}'` }], usage: U(30, 12) },
    { text: 'Handed back.', usage: U(10, 5) },
  ],
};
