// Shows the ruler in a page that stands alone, from what is written in that page: see widgets/page.py.

const ruler = new StepRuler(place("ruler"));
ruler.send = () => {};
ruler.update(JSON.parse(new TextDecoder().decode(written("data"))));
whenThemeChanges(() => ruler.draw());
