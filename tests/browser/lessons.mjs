// Opens pages of JupyterLite in Chromium until their notebook shows: node lessons.mjs PLAYWRIGHT CHROMIUM ADDRESS...
const [folder, executablePath, ...addresses] = process.argv.slice(2);
const { chromium } = (await import(`${folder}/index.mjs`)).default;
const quiet = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync";
const browser = await chromium.launch({ executablePath, args: [...quiet.split(" "), "--disable-component-update"] });
const context = await browser.newContext({ viewport: { width: 390, height: 844 } }); // a phone, with one cache
for (const address of addresses) {
  const page = await context.newPage();
  await page.goto(address);
  await page.locator(".jp-Notebook .jp-Cell", { hasText: "tiny-mixed-precision" }).first().waitFor({ timeout: 60000 });
  const sizes = await page.evaluate(() => performance.getEntriesByType("resource").map((one) => one.decodedBodySize));
  const bytes = sizes.reduce((sum, size) => sum + size, 0);
  console.log(JSON.stringify({ address, bytes }));
  await page.close();
}
await browser.close();
