import { mounted } from "../streamlit.js";
import { EmbeddingSum } from "./embedding_sum.js";

export default mounted(EmbeddingSum, "act");
