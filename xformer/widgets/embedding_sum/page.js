import { place, whenThemeChanges, embedded } from "../page.js";
import { EmbeddingSum } from "./embedding_sum.js";

const picture = new EmbeddingSum(place("sum"));
picture.update(embedded("data"));
whenThemeChanges(() => picture.fit());
