// Shows the player in a page that stands alone, from what is written in that page: see widgets/page.py.

const player = new Player(place("player"));
player.send = () => {};
player.update(written("data"));
whenThemeChanges(() => player.draw());
