import { place, whenThemeChanges, written } from "../page.js";
import { EmbeddingSum } from "./embedding_sum.js";

const picture = new EmbeddingSum(place("sum"));
picture.update(written("data"));
whenThemeChanges(() => picture.fit());
