/** A plot of ratios as a small SVG that can be read on light and dark pages. */

export interface RatioPlot {
  readonly title: string
  /** In the order of the legend; the last one is drawn on top, and filled. */
  readonly series: readonly string[]
  readonly rows: readonly { readonly name: string; readonly values: ReadonlyMap<string, number> }[]
}

const LEFT = 330
const WIDTH = 980
const RIGHT = 30
const ROW = 22
const TOP = 74
const TICKS = [0.1, 0.2, 0.5, 1, 2, 5]
const [LEAST, MOST] = [0.05, 8]
const COLOURS = ['#8a63d2', '#c77700', '#7a8793', '#0f8f6f']

/** One line a row, a mark for each series at its ratio, on a scale of logarithms; what is out of it sits at its edge. */
export function ratioPlot({ title, series, rows }: RatioPlot): string {
  const height = TOP + rows.length * ROW + 40
  const bottom = TOP + rows.length * ROW
  const colour = (name: string) => COLOURS[(series.indexOf(name) + COLOURS.length - series.length) % COLOURS.length]
  const x = (ratio: number) => {
    const at = Math.min(Math.max(ratio, LEAST), MOST)
    return LEFT + ((Math.log(at) - Math.log(LEAST)) / (Math.log(MOST) - Math.log(LEAST))) * (WIDTH - LEFT - RIGHT)
  }
  const mark = (name: string, cx: number, cy: number) =>
    name === series.at(-1)
      ? `<circle cx="${cx.toFixed(1)}" cy="${cy}" r="6" fill="${colour(name)}"/>`
      : `<circle cx="${cx.toFixed(1)}" cy="${cy}" r="4.5" fill="none" stroke="${colour(name)}" stroke-width="2"/>`
  const legend = series.map((name, at) => {
    const left = LEFT + at * 150
    return `${mark(name, left, 46)}<text x="${left + 11}" y="50">${escaped(name)}</text>`
  })
  const ticks = TICKS.map((tick) => {
    const at = x(tick).toFixed(1)
    return `<line class="${tick === 1 ? 'one' : 'tick'}" x1="${at}" x2="${at}" y1="${TOP - 8}" y2="${bottom}"/><text x="${at}" y="${bottom + 18}" text-anchor="middle">${tick}</text>`
  })
  const lines = rows.flatMap(({ name, values }, at) => {
    const y = TOP + at * ROW + ROW / 2
    return [
      `<text x="${LEFT - 14}" y="${y + 4}" text-anchor="end">${escaped(name)}</text>`,
      `<line class="row" x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${y}" y2="${y}"/>`,
      ...series.flatMap((one) => {
        const value = values.get(one)
        return value === undefined ? [] : [mark(one, x(value), y)]
      }),
    ]
  })
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" role="img" aria-label="${escaped(title)}">
<style>
  text { font: 13px system-ui, sans-serif; fill: #24292f; }
  .title { font-weight: 600; font-size: 15px; }
  .row, .tick { stroke: #8a93a0; stroke-opacity: .28; }
  .one { stroke: #57606a; stroke-width: 1.5; }
  @media (prefers-color-scheme: dark) { text { fill: #d7dde4; } .one { stroke: #aab4c0; } }
</style>
<text class="title" x="20" y="24">${escaped(title)}</text>
${[...ticks, ...lines, ...legend].join('\n')}
</svg>
`
}

function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('"', '&quot;')
}
