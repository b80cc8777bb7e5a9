import com.google.gson.Gson;
import com.google.gson.reflect.TypeToken;
import jakarta.activation.DataHandler;
import jakarta.mail.AuthenticationFailedException;
import jakarta.mail.Message.RecipientType;
import jakarta.mail.Session;
import jakarta.mail.internet.InternetAddress;
import jakarta.mail.internet.MimeBodyPart;
import jakarta.mail.internet.MimeMessage;
import jakarta.mail.internet.MimeMultipart;
import jakarta.mail.util.ByteArrayDataSource;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.OffsetDateTime;
import java.time.format.DateTimeFormatter;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.eclipse.angus.mail.smtp.SMTPTransport;

/** Sends the corpus with Jakarta Mail by one connection of each port, and tries a wrong key. */
class Angus {
    record Attachment(String name, String type, Map<String, String> params, String content_id, String content) {}

    record Letter(String subject, String name, String from, List<String> to, List<String> cc, List<String> bcc,
            String reply_to, String message_id, String text, String html, Map<String, String> headers,
            List<Attachment> files, String at) {}

    static final Map<String, String> ENV = System.getenv();

    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        properties.put("mail.smtp.auth", "true");
        properties.put("mail.smtp.starttls.enable", "true");
        properties.put("mail.smtp.starttls.required", "true");
        Session session = Session.getInstance(properties);
        String json = Files.readString(Path.of("corpus.json"));
        List<Letter> letters = new Gson().fromJson(json, new TypeToken<List<Letter>>() {}.getType());
        SMTPTransport starttls = connect(session, "smtp", "PORT", ENV.get("KEY"));
        SMTPTransport tls = connect(session, "smtps", "SSL_PORT", ENV.get("KEY"));
        for (int i = 0; i < letters.size(); i++) {
            SMTPTransport transport = i % 2 == 0 ? starttls : tls;
            MimeMessage message = message(session, letters.get(i));
            transport.sendMessage(message, message.getAllRecipients());
            System.out.println("sent " + transport.getLastServerResponse().strip());
        }
        starttls.close();
        tls.close();
        try {
            connect(session, "smtp", "PORT", "wrong");
        } catch (AuthenticationFailedException e) {
            System.out.println("refused " + e.getMessage().substring(0, 3));
        }
    }

    static SMTPTransport connect(Session session, String protocol, String port, String key) throws Exception {
        SMTPTransport transport = (SMTPTransport) session.getTransport(protocol);
        transport.connect(ENV.get("HOST"), Integer.parseInt(ENV.get(port)), "apikey", key);
        return transport;
    }

    static MimeMessage message(Session session, Letter letter) throws Exception {
        MimeMessage message = new MimeMessage(session) {
            @Override
            protected void updateMessageID() throws jakarta.mail.MessagingException {
                if (letter.message_id.isEmpty()) {
                    super.updateMessageID();
                } else {
                    setHeader("Message-ID", letter.message_id);
                }
            }
        };
        message.setFrom(new InternetAddress(letter.from, letter.name, "UTF-8"));
        for (String to : letter.to) {
            message.addRecipient(RecipientType.TO, new InternetAddress(to));
        }
        for (String cc : or(letter.cc, List.<String>of())) {
            message.addRecipient(RecipientType.CC, new InternetAddress(cc));
        }
        for (String bcc : or(letter.bcc, List.<String>of())) {
            message.addRecipient(RecipientType.BCC, new InternetAddress(bcc));
        }
        if (!letter.reply_to.isEmpty()) {
            message.setReplyTo(InternetAddress.parse(letter.reply_to));
        }
        message.setSubject(letter.subject, "UTF-8");
        for (Map.Entry<String, String> h : or(letter.headers, Map.<String, String>of()).entrySet()) {
            message.setHeader(h.getKey(), jakarta.mail.internet.MimeUtility.encodeText(h.getValue(), "UTF-8", null));
        }
        if (letter.at != null) {
            String at = OffsetDateTime.parse(letter.at).format(DateTimeFormatter.RFC_1123_DATE_TIME);
            message.setHeader("X-Mailgun-Deliver-By", at);
        }
        MimeMultipart alternative = new MimeMultipart("alternative");
        text(alternative, letter.text, "plain");
        text(alternative, letter.html, "html");
        MimeMultipart related = new MimeMultipart("related");
        related.addBodyPart(wrap(alternative));
        MimeMultipart mixed = new MimeMultipart("mixed");
        mixed.addBodyPart(wrap(related));
        for (Attachment file : or(letter.files, List.<Attachment>of())) {
            String type = file.type;
            for (Map.Entry<String, String> p : or(file.params, Map.<String, String>of()).entrySet()) {
                type += "; " + p.getKey() + "=" + p.getValue();
            }
            MimeBodyPart part = new MimeBodyPart();
            byte[] content = Base64.getDecoder().decode(file.content);
            part.setDataHandler(new DataHandler(new ByteArrayDataSource(content, type)));
            part.setFileName(file.name);
            if (file.content_id.isEmpty()) {
                mixed.addBodyPart(part);
            } else {
                part.setContentID("<" + file.content_id + ">");
                part.setDisposition("inline");
                related.addBodyPart(part);
            }
        }
        if (letter.html.isEmpty() && letter.files == null) {
            message.setText(letter.text, "UTF-8");
        } else {
            message.setContent(mixed);
        }
        return message;
    }

    static void text(MimeMultipart alternative, String text, String subtype) throws Exception {
        if (!text.isEmpty()) {
            MimeBodyPart part = new MimeBodyPart();
            part.setText(text, "UTF-8", subtype);
            alternative.addBodyPart(part);
        }
    }

    static MimeBodyPart wrap(MimeMultipart content) throws Exception {
        MimeBodyPart part = new MimeBodyPart();
        part.setContent(content);
        return part;
    }

    static <T> T or(T value, T other) {
        return value == null ? other : value;
    }
}
