<?php
// Sends the corpus with PHPMailer by one connection, and a mail with a wrong key.
require getenv('PHPMAILER') . '/autoload.php';

use PHPMailer\PHPMailer\Exception;
use PHPMailer\PHPMailer\PHPMailer;

function mailer(string $key): PHPMailer
{
    $mail = new PHPMailer(true);
    $mail->isSMTP();
    $mail->Host = getenv('HOST');
    $mail->Port = getenv('PORT');
    $mail->SMTPSecure = PHPMailer::ENCRYPTION_STARTTLS;
    $mail->SMTPOptions = ['ssl' => ['cafile' => getenv('CA')]];
    $mail->SMTPAuth = true;
    $mail->Username = 'apikey';
    $mail->Password = $key;
    $mail->SMTPKeepAlive = true;
    $mail->CharSet = PHPMailer::CHARSET_UTF8;
    return $mail;
}

$mail = mailer(getenv('KEY'));
foreach (json_decode(file_get_contents('corpus.json'), true) as $letter) {
    $mail->clearAllRecipients();
    $mail->clearReplyTos();
    $mail->clearCustomHeaders();
    $mail->clearAttachments();
    $mail->setFrom($letter['from'], $letter['name']);
    foreach (['addAddress' => 'to', 'addCC' => 'cc', 'addBCC' => 'bcc'] as $add => $list) {
        array_map([$mail, $add], $letter[$list] ?? []);
    }
    if ($letter['reply_to']) {
        $mail->addReplyTo($letter['reply_to']);
    }
    $mail->Subject = $letter['subject'];
    $mail->MessageID = $letter['message_id'];
    $mail->isHTML($letter['html'] !== '');
    $mail->Body = $letter['html'] ?: $letter['text'];
    $mail->AltBody = $letter['html'] ? $letter['text'] : '';
    foreach ($letter['headers'] ?? [] as $name => $value) {
        $mail->addCustomHeader($name, $value);
    }
    if ($letter['at']) {
        $mail->addCustomHeader('X-Mailgun-Deliver-By', (new DateTime($letter['at']))->format(DATE_RFC2822));
    }
    foreach ($letter['files'] ?? [] as $file) {
        $content = base64_decode($file['content']);
        $method = $file['params']['method'] ?? '';
        $type = $file['type'] . ($method ? "; method=$method" : '');
        if ($file['content_id']) {
            $mail->addStringEmbeddedImage($content, $file['content_id'], $file['name'], 'base64', $type);
        } else {
            $mail->addStringAttachment($content, $file['name'], 'base64', $type);
        }
    }
    $mail->send();
    echo 'sent ', $mail->getSMTPInstance()->getLastTransactionID(), "\n";
}
$mail->smtpClose();

$wrong = mailer('wrong');
$wrong->setFrom('shop@demo.test');
$wrong->addAddress('a@demo.test');
$wrong->Body = 't';
try {
    $wrong->send();
} catch (Exception $e) {
    echo 'refused ', $e->getMessage(), "\n";
}
